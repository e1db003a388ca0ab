"""How fast Duly is and what it costs, side by side with what people write without it."""
