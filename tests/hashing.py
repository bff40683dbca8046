"""A password hasher for tests: the portal's algorithm, but so cheap that it saves a third of a second for each
password."""

from django.contrib.auth.hashers import Argon2PasswordHasher


class QuickArgon2(Argon2PasswordHasher):
    time_cost, memory_cost, parallelism = 1, 8, 1
