"""The layer between the web server and Django. It limits the size of request bodies, the use of threads, and waiting
times.

A request passes these modules in this order before Django gets it:

1. `clients` identifies the sender by address and login, so that one client cannot use up the resources below.
2. `bodies` reads the body. It refuses a body that is too large (413) or takes too long (408).
3. `threads` lends the request a thread with a database connection, when `turns` admits the client. If no thread is free
   in time, `app` answers 503. Streams and static files have separate threads. Only a few requests that hash a password,
   such as a login, hold a thread at the same time.
4. `app` answers 503 if the database stops answering. It takes the thread back when the response begins.
5. `handler` runs Django in this one thread: middleware, view, and the end of the request.

As a result, a web process never has more database connections than FAIRLOT_WEB_DATABASE_CONNECTIONS, no matter how many
requests arrive. An open stream holds neither a thread nor a connection.
"""
