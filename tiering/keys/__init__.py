"""Keys of topics whose archives are encrypted: the key file, and encrypting a part."""
