"""How an engine gets at a pool: what the connectors of all engines need for it."""
