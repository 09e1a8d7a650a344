"""The jobs that make a survey: capture, statistics, report, and the command line."""
