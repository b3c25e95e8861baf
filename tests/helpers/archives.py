"""Archives of files in memory."""

import io
import tarfile
import zipfile


def as_zip(files, packing=zipfile.ZIP_DEFLATED):
    """Bytes of ``{name or ZipInfo: content}``."""
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w", packing) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return buffer.getvalue()


def as_tar(files, mode="w"):
    """Bytes of ``{name or TarInfo: content}``."""
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode=mode) as archive:
            for name, content in files.items():
                info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return buffer.getvalue()
