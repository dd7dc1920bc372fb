"""AND-OR interactions of neural networks: extraction, generalization power and training dynamics.

Rooms, from top to bottom: `book`, `figures`, `method`, `models`, `data`, `masking`, `split`. Each
imports only rooms below it. All rest on `transforms`, `interactions`, `storage` and `device`.
"""

import lazy_loader

# Names are imported when first used, so `import symgen` takes no seconds. They stand in
# __init__.pyi, where type checkers and editors read them too.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.3.0"
