"""What the init schemes share: distributions, what a scheme is and needs, drawing, live networks, coverage."""
