"""Sends hostile images (bombs, damaged, truncated, mislabelled files) to a server on the toy engine, in all dialects.

Each is answered or refused by its name: any other status ends the run. They are sent twice: the first time reaches the
most memory that one of them takes, and the second time shows whether more is kept.
"""

import argparse
import resource

from tests.support.http.hostile_images import picture, send
from tests.support.http.images import SHOWING, picture_service


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with picture_service() as service:

        def post(path: str, body: object) -> object:
            return service.client.post(path, json=body)

        send(post, asked.num, asked.seed)
        before_kib = _peak_kib()
        found = send(post, asked.num, asked.seed)
        grown_kib = _peak_kib() - before_kib
        chat = SHOWING["chat"]
        answer = service.client.post(chat.path, json=chat.body(picture(), "what is it?"))
    print(f"{asked.num} images: {found[200]} answered, {found[400]} refused by name, nothing else")
    print(f"the most memory grew by {grown_kib // 1024} MiB the second time; then: {answer.status_code}")


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
