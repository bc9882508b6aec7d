"""Plans in the trainers of other projects. Import the module of your trainer."""
