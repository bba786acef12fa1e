"""Small trainings on digits beside what the checks said before: where docs/experiments.md comes from."""
