"""What is measured and not tested: always two things in one run, never a time alone."""
