"""The layer between the web server and Django: limits on bodies, threads and waiting times.

A request passes these in order before Django sees it:

1. `clients` identifies the sender by address and login, so that one client gets only its share of what follows.
2. `bodies` reads the body, up to a limit of size and of time (413, 408).
3. `threads` lends the request a thread with a database connection when `turns` admits the client; `app` answers 503
   if
   that takes too long. Streams and static files have separate threads, and only a few logins at a time get one.
4. `app` answers 503 when the database stops answering, and takes the thread back when the answer begins.
5. `handler` runs Django in that thread: middleware, view, and the end of the request, in one visit.

So a web process never has more database connections than FAIRLOT_WEB_DATABASE_CONNECTIONS, whatever arrives, and
streams hold neither a thread nor a connection.
"""
