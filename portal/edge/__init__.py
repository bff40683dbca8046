"""The layer between the web server and Django: limits on bodies, threads and waiting times.

A request passes these modules in order before Django sees it:

1. `clients` identifies the sender by address and login, so that one client cannot use up the following resources.
2. `bodies` reads the body, within limits of size and time (else 413 or 408).
3. `threads` lends the request a thread with a database connection, when `turns` admits the client. If that takes too
   long, `app` answers 503. Streams and static files have separate threads, and only a few logins at a time get a
   thread.
4. `app` answers 503 if the database stops answering, and takes the thread back when the answer begins.
5. `handler` runs Django in the thread, without leaving it in between: middleware, view, and the end of the request.

So a web process never has more database connections than FAIRLOT_WEB_DATABASE_CONNECTIONS, however many requests
arrive. Streams hold neither a thread nor a connection.
"""
