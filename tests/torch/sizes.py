"""How large models are where compiling them takes most of a test's time."""

import dataclasses

import models

#: One layer has all kinds of collectives, and room to move them.
TINY = dataclasses.replace(models.SMALL, layers=1)
