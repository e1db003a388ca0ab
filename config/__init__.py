"""Settings: duly.toml and the environment, checked, with errors that name the line and the remedy."""
