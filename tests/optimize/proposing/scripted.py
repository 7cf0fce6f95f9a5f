"""The scripted proposer as a command: prints the answer that is next in a file of answers, whatever it is asked.

python scripted.py ANSWERS.json [REQUESTS.jsonl]
"""

import json
import sys

request = json.load(sys.stdin)
with open(sys.argv[1]) as file:
    answers = json.load(file)
if len(sys.argv) > 2:
    with open(sys.argv[2], "a") as seen:
        print(json.dumps(request), file=seen)
print(answers[len(answers) - request["limits"]["proposals_left"]])
