"""Keys of topics whose archives are encrypted: the key file, and the encryption of one part.

In here: the `KeyProvider` seam, the provider that keeps keys in a file, and AES-256-GCM. Not in
here: which topics are encrypted (`policy.schedule`), and destroying a key (`operations.erase`).
Begin with `crypto`, then `key_file`. May import `errors`.
"""
