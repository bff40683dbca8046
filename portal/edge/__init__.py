"""What stands between the web server and Django: bounds on bodies, threads and waiting times.

A request passes these in turn, before Django sees it:

1. `clients` tells who sends it: by address and login, so that one client has only its share of what follows.
2. `bodies` reads the body, up to a limit of size and of time (413, 408).
3. `threads` lends it a thread with a database connection when it is the client's `turn`, or `app` answers 503
   when it is not soon enough. Streams and static files have threads of their own, and few logins at a time go
   on to one.
4. `app` answers 503 when the database stops answering, and takes the thread back when the answer begins.
5. `handler` is Django in that thread: middleware, view, and the end of the request, in one visit.

So a web process never has more database connections than FAIRLOT_WEB_DATABASE_CONNECTIONS, whatever arrives,
and streams hold neither a thread nor a connection.
"""
