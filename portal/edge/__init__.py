"""The layer between the web server and Django. It limits the size of request bodies, the use of threads, and waiting
times.

A request passes these modules in this order:

1. `clients` identifies the sender by address and login, so that one client cannot use up the resources below.
2. `bodies` reads the body. It refuses a body that is too large (413) or takes too long (408).
3. `threads` lends the request a thread with a database connection. `turns` decides whose request gets the next free
   thread. If the request gets none in time, `app` answers 503.
4. `handler` runs Django in the lent thread.
5. `app` takes the thread back when the response begins. If the database stops answering before that, `app` answers 503.

Streams and static files have separate threads. An open stream holds no thread and no database connection, except during
short checks whether its reader may still read it.

A web process never has more database connections than FAIRLOT_WEB_DATABASE_CONNECTIONS.
"""
