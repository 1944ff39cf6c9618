"""Reports health events through the agent's socket, as a monitor in another language does.

The stubs are generated from the published .proto by Python's own gRPC tools. The retry behaviour is
the one that the reference's monitors share: the socket file must be there before each try; only
UNAVAILABLE and DEADLINE_EXCEEDED are tried again, five tries in all.

Prints one JSON line an event: {"id", "outcome", "tries"}.
"""

import argparse
import importlib
import json
import os
import random
import sys
import tempfile
import time

import grpc
from google.protobuf import timestamp_pb2
from grpc_tools import protoc

TRIES = 5
RETRYABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def stubs(proto, folder):
    """The message and service modules, generated into a folder of the caller's."""
    name = os.path.basename(proto)
    include = os.path.join(os.path.dirname(protoc.__file__), "_proto")
    arguments = [
        "protoc",
        f"-I{os.path.dirname(proto)}",
        f"-I{include}",
        f"--python_out={folder}",
        f"--grpc_python_out={folder}",
        name,
    ]
    if protoc.main(arguments) != 0:
        sys.exit(f"generating stubs from {proto} failed")
    sys.path.insert(0, folder)
    module = name.removesuffix(".proto")
    return importlib.import_module(f"{module}_pb2"), importlib.import_module(f"{module}_pb2_grpc")


def publish(stub, socket, batch):
    """Sends one batch as the reference's publisher does; answers (outcome, tries)."""
    wait = 2.0
    for attempt in range(1, TRIES + 1):
        if not os.path.exists(socket):
            return "SOCKET_MISSING", attempt
        try:
            stub.HealthEventOccurredV1(batch)
            return "OK", attempt
        except grpc.RpcError as error:
            if error.code() not in RETRYABLE or attempt == TRIES:
                return error.code().name, attempt
            print(f"try {attempt} of {TRIES}: {error.code().name}", file=sys.stderr, flush=True)
        time.sleep(wait * random.uniform(1, 1.1))
        wait *= 1.5
    return "UNREACHABLE", TRIES


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--proto", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--node", default="")
    parser.add_argument("--agent", default="python-monitor")
    parser.add_argument("--check", default="PythonCheck")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--fatal", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        messages, services = stubs(options.proto, folder)
    channel = grpc.insecure_channel(f"unix://{options.socket}")
    stub = services.PlatformConnectorStub(channel)
    for number in range(options.count):
        now = timestamp_pb2.Timestamp()
        now.GetCurrentTime()
        event = messages.HealthEvent(
            version=1,
            id=f"python-{number}",
            agent=options.agent,
            componentClass="GPU",
            checkName=options.check,
            isFatal=options.fatal,
            isHealthy=options.healthy,
            message=f"event {number} of a Python monitor",
            recommendedAction=messages.RecommendedAction.Value("CONTACT_SUPPORT"),
            errorCode=[] if options.healthy else ["42"],
            entitiesImpacted=[messages.Entity(entityType="GPU", entityValue=str(number))],
            generatedTimestamp=now,
            nodeName=options.node,
        )
        batch = messages.HealthEvents(version=1, events=[event])
        outcome, tries = publish(stub, options.socket, batch)
        print(json.dumps({"id": event.id, "outcome": outcome, "tries": tries}), flush=True)


if __name__ == "__main__":
    main()
