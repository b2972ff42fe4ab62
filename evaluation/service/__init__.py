"""The evaluator as a server: what travels, what is kept, the HTTP interface, the workers, and the client."""
