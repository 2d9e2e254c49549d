"""Kim and Pavlovic (2007), "A recursive method for discriminative mixture learning"."""
