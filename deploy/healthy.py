"""Ends with 0 while the broker of this container can persist what it accepts: for HEALTHCHECK."""

import sys
from urllib.error import URLError
from urllib.request import urlopen

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7780/healthz"

try:
    with urlopen(URL, timeout=4) as answer:
        print(answer.read().decode())
except URLError as error:  # an answer of 503 is one, too
    sys.exit(f"{URL}: {error}")
