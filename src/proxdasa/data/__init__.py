"""Data sets, where their files are kept, and how their rows are spread over agents.

A loader returns a `Dataset`, tensors and nothing else; a partition (`proxdasa.data.partitions`) turns its labels and a
number of agents into one list of rows per agent. Data of your own come from tensors, torch Datasets or data frames
(`from_tensors`, `from_dataset`, `from_frame`), which are refused where they are not plain numbers. Files are in
`folder()`, where `fetch` puts them. Data in one file per agent (`per_agent`) are read later, by the processes of those
agents.
"""

from typing import TYPE_CHECKING

from proxdasa.lazy_names import lazy_names

if TYPE_CHECKING:
    from proxdasa.data import partitions
    from proxdasa.data.data_folder import VARIABLE, folder
    from proxdasa.data.dataset import Dataset, Examples, from_tensors
    from proxdasa.data.download import FetchError, fetch
    from proxdasa.data.frames import from_frame
    from proxdasa.data.loaders import a9a, breast_cancer, digits, libsvm, mnist
    from proxdasa.data.named_loaders import ALL
    from proxdasa.data.partitions import Contiguous, Dirichlet, Partition, Shards, Shuffled, Sites, Sizes
    from proxdasa.data.per_agent_files import per_agent
    from proxdasa.data.sources import SOURCES, listing
    from proxdasa.data.torch_datasets import from_dataset
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "ALL",
    "SOURCES",
    "VARIABLE",
    "Contiguous",
    "Dataset",
    "Dirichlet",
    "Examples",
    "FetchError",
    "Partition",
    "Shards",
    "Shuffled",
    "Sites",
    "Sizes",
    "a9a",
    "breast_cancer",
    "digits",
    "fetch",
    "folder",
    "from_dataset",
    "from_frame",
    "from_tensors",
    "libsvm",
    "listing",
    "mnist",
    "partitions",
    "per_agent",
]
