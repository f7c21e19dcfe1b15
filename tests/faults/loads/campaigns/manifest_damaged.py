"""Cuts, empties or deletes the manifest of the newest load before a run, which reads its start offsets from it."""

from __future__ import annotations

import random

from harness import Result, Run
from klamm.hadoop.lake.verification.verify import verify_topic
from loads.scene import Scene, campaign


class ManifestDamaged:
    name = "load-manifest-damaged"
    injects = "_offsets.json of the newest load cut anywhere, emptied or deleted before a run"
    asserts = (
        "the run fails in one line and publishes nothing; verify finds the damage; once the file is put back, which is "
        "all that is done, the next run loads the rest, each offset once"
    )
    plants = "a manifest that cannot be read is passed over for an older one"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, damage_one, plant="blind")


def damage_one(at: int, chance: random.Random, scene: Scene) -> None:
    scene.driver().run_to_end()  # a load before the damaged one
    scene.produce(chance)
    before, path, admin = scene.numbers(), scene.manifest_of_last(), scene.admin
    with admin.read(path) as file:
        data = file.read()
    admin.delete(path)
    if at % 3 != 1:
        admin.write(path, data[: chance.randrange(1, len(data) - 2)] if at % 3 == 0 else b"")
    scene.refused(at, scene.driver().run_to_end())
    if scene.numbers() != before:
        scene.total.corrupt(at, f"loads {before} before, {scene.numbers()} after")
    if not verify_topic(scene.files, scene.layout).findings:
        scene.total.wrong(at, "verify does not see it")
    admin.write(path, data, overwrite=True)


CAMPAIGNS = [ManifestDamaged()]
