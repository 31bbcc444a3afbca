# What `make serve` does, in an image: the pinned packages, then the service with a token of its own.
FROM python:3.11-slim

WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY app app
COPY fbxcore fbxcore
COPY templates templates
COPY static static
COPY migrations migrations
RUN python -m pip --disable-pip-version-check install --no-cache-dir --constraint requirements.lock '.[server,postgres]'

RUN useradd --system --create-home flashdeck && mkdir /data && chown flashdeck /data
USER flashdeck
WORKDIR /data
ENV FLASHDECK_DATA=/data PYTHONUNBUFFERED=1 GLIBC_TUNABLES=glibc.malloc.hugetlb=1
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=3)"]
CMD ["sh", "-c", "flashdeck db upgrade && exec flashdeck serve --host 0.0.0.0 --generate-token"]
