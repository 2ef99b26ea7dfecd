"""The Celery application that runs children."""
