"""How gangs are run: one package a backend. Light to import, as supervisors of local jobs pass through here."""
