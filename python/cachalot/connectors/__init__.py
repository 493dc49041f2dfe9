"""Connectors: Cachalot's pool inside other inference engines. Each is imported by the engine that it is for."""
