# The image of worker and flower: the installed package, an unprivileged user, nothing else.
FROM python:3.12-slim

RUN useradd --create-home --uid 10001 dsh

WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY dsh_tasks dsh_tasks
COPY workers workers
RUN pip install --no-cache-dir . && rm -rf /build

USER dsh
WORKDIR /home/dsh
CMD ["dsh-tasks", "worker", "--concurrency", "100"]
