"""One thread for every test: the models are tiny, and threads that wait for each other starve on a busy machine."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything loads numpy or torch
