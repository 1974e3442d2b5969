"""The HTTP door: metrics, health, and the admin page.

In here: the door (`http_door`), its routes and the guard in front of them (`application`), sign-ins
(`page_sessions`), the pages and the changes that they ask for (`admin_pages`, `admin_changes`), and
how a message is shown (`shown_message`); with templates, a style sheet and a script, which are
served as they are. Not in here: the metrics (`serve.metrics`), rights (`serve.access`), and the
calls on messages. Begin with `http_door`, then `application`. May import `serve.access`,
`serve.metrics`, `serve.gatherer`, `serve.door`, and every room that `serve` may.
"""
