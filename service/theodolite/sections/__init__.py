"""What a run's results show: sentences made from the numbers, and the figures. The report and the page share them."""
