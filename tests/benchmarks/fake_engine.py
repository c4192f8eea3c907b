"""An engine that answers at once and says that each step took a millisecond."""

import argparse
import json
import os
import sys

STEP_S = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=int, required=True)
    parser.add_argument("--setting", required=True)
    a = parser.parse_args()
    setting = json.loads(a.setting)
    if not os.path.isfile(os.path.join(setting["folder"], "config.json")):
        sys.exit("the folder has no config.json")
    with open(a.answers, "w", buffering=1) as answers:
        print(json.dumps({"ready_s": 0.0, "version": "fake"}), file=answers)
        for line in sys.stdin:
            request = json.loads(line)
            if request.get("mixed"):
                answer = {"seconds": 1.0, "input_tokens": 10, "output_tokens": 1000}
            elif request["count"] == 13:
                answer = {"error": "thirteen is too many"}
            else:
                answer = {
                    "seconds": STEP_S * request["outputs"],
                    "input_tokens": request["count"] * request["input"],
                    "output_tokens": request["count"] * request["outputs"],
                }
            print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
