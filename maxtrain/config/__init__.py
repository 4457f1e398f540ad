"""Config: schema, loading, checks, presets."""
