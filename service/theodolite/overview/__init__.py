"""The overview of a contrast: four questions, curves, prompts; the same on the page, in the report and in notebooks."""
