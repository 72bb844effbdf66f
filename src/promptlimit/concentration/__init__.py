"""How fast a prompt becomes infinite: gaps, their rate, proved bounds, and the length you need."""
