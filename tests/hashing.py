"""Password hashing for tests: the portal's algorithm without its cost, a third of a second each."""

from django.contrib.auth.hashers import Argon2PasswordHasher


class QuickArgon2(Argon2PasswordHasher):
    time_cost, memory_cost, parallelism = 1, 8, 1
