"""`python -m policies.schema` writes the JSON schema of the policy file from its model."""

import json
from pathlib import Path

from policies.model import Policy

PATH = Path(__file__).with_name("schema.json")


def text() -> str:
    schema = Policy.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Fallow policy"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
