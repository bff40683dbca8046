"""The layer between the web server and Django. It limits the size of request bodies, the use of threads, and waiting
times.

A request passes these modules in this order:

1. `clients` identifies the sender by address and login, so that one client cannot use up the resources below.
2. `bodies` reads the body. It refuses a body that is too large (413) or takes too long (408).
3. `threads` lends the request a thread with a database connection. `turns` decides whose request gets the next free
   thread. If the request gets none in time, `app` answers 503. Streams and static files have separate threads. Only a
   few requests that hash a password, such as a login, hold a thread at the same time.
4. `handler` runs Django in the lent thread: middleware, view, and the end of the request.
5. `app` takes the thread back when the response begins. If the database stops answering before that, `app` answers 503.

As a result, a web process never has more database connections than FAIRLOT_WEB_DATABASE_CONNECTIONS, no matter how many
requests arrive. A stream gives its thread back when its response begins. An open stream then holds neither a thread nor
a connection, except during the short checks whether its reader may still read it.
"""
