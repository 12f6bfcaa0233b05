"""From folders of trainings to tables, figures and a page."""
