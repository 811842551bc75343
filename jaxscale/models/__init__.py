"""Models by name or file: the catalogue of public models, TOML files, and config.json files of Hugging Face."""

from jaxscale.models.model_catalogue import ModelDescription as ModelDescription
from jaxscale.models.model_catalogue import catalogue_model as catalogue_model
from jaxscale.models.model_catalogue import described_model as described_model
from jaxscale.models.model_catalogue import model as model
from jaxscale.models.model_catalogue import model_fields as model_fields
from jaxscale.models.model_catalogue import model_file_fields as model_file_fields
from jaxscale.models.model_catalogue import model_id as model_id
