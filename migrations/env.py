"""Run migrations on the database whose address `app.db` (or FLASHDECK_DATABASE_URL) gives."""

from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from app.db import sync_url
from app.settings import Settings
from app.tables import Base


def run() -> None:
    url = context.config.attributes.get("url") or sync_url(Settings().url)
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            render_as_batch=engine.dialect.name == "sqlite",
            compare_type=True,
        )
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()
    engine.dispose()


run()
