"""The loaders that a configuration file can name."""

from proxdasa.data.loaders import a9a, breast_cancer, digits, libsvm, mnist
from proxdasa.data.per_agent_files import per_agent

ALL = (a9a, mnist, digits, breast_cancer, libsvm, per_agent)
