"""What each family can get wrong by itself: checks of its tiny model, which test_every_family.py runs in one build."""
