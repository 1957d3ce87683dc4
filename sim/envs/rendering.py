"""Offscreen frames from MuJoCo over EGL, fast on a laptop's CPU as on a GPU.

What makes it fast: no shadows, reflections, sky, haze or multi-sampling, and geoms whose bounding
box lies outside the picture are not drawn at all. Without shadows and reflections the last
changes no pixel, and it saves the vertices of the arm, on which a software rasteriser spends its
time. Frames are drawn at twice their size and averaged: smooth edges cost little that way, and a
GPU and a CPU, which disagree about single pixels on an edge, then agree to within rounding. The
settings are the same wherever frames are made.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from ..errors import SimulationError

_NEVER = ('REFLECTION', 'HAZE')  # many times the price, for a gleam
_FINE_ONLY = ('SHADOW', 'SKYBOX')
_HIDDEN_GROUP = 5  # geoms of group 5 are not drawn by MuJoCo's default options
_open_renderers: weakref.WeakSet[FrameRenderer] = weakref.WeakSet()


@dataclass(frozen=True)
class Camera:
    """Where pictures are taken from: a camera of the model by name, or a free one.

    Args:
        name: a camera of the model; leave out for a free camera.
        lookat: point in the middle of a free camera's picture, metres; from `follow` on, if given.
        distance: from that point, metres.
        azimuth: degrees; 90 looks along +y.
        elevation: degrees; negative looks down.
        rotated: turn the picture by 180 degrees (some cameras of MetaWorld hang upside down).
        follow: a body that a free camera moves with, without turning with it.
    """

    name: str | None = None
    lookat: tuple[float, float, float] = (0.0, 0.0, 0.0)
    distance: float = 1.0
    azimuth: float = 90.0
    elevation: float = -45.0
    rotated: bool = False
    follow: str | None = None

    def build(self, model: Any) -> Any:
        """Return MuJoCo's camera for `model`."""
        camera = mujoco.MjvCamera()
        if self.name is not None:
            camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
            camera.fixedcamid = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, self.name)
            if camera.fixedcamid < 0:
                raise SimulationError(f'the model has no camera {self.name!r}')
            return camera
        camera.type = mujoco.mjtCamera.mjCAMERA_FREE
        camera.lookat[:] = self.lookat
        camera.distance, camera.azimuth = self.distance, self.azimuth
        camera.elevation = self.elevation
        return camera


class FrameRenderer:
    """Draws frames of one size of one model; made cheaply, opens its context at the first frame.

    Any thread may ask for a frame, one at a time: the context is taken and let go for each.

    Args:
        model: MuJoCo's model.
        width: of a frame, pixels.
        height: of a frame, pixels.
        fine: with shadows and sky, for videos; several times slower without a GPU.
        sites: draw sites (MetaWorld marks the goal with one).
        cull: leave out what is outside the picture; off only to show that it changes nothing.
    """

    def __init__(
        self,
        model: Any,
        width: int,
        height: int,
        *,
        fine: bool = False,
        sites: bool = False,
        cull: bool = True,
    ) -> None:
        self.model, self.width, self.height = model, width, height
        self._fine, self._cull = fine, cull and not fine
        self._lock = threading.Lock()
        self._gl: Any = None
        self._context: Any = None
        self._scene = mujoco.MjvScene(model, 2000)
        self._options = mujoco.MjvOption()
        if not sites:
            self._options.sitegroup[:] = 0
        for flag in _NEVER if fine else _NEVER + _FINE_ONLY:
            self._scene.flags[getattr(mujoco.mjtRndFlag, f'mjRND_{flag}')] = 0
        self._cameras: dict[Camera, Any] = {}

    def frame(self, data: Any, camera: Camera) -> NDArray[np.uint8]:
        """Draw the present state; uint8 [height, width, 3], upright.

        Raises:
            SimulationError: if the model has no such camera or EGL does not work here.
        """
        with self._lock, self._current():
            view = self._cameras.get(camera)
            if view is None:
                view = self._cameras[camera] = camera.build(self.model)
            if camera.follow is not None:
                view.lookat[:] = data.body(camera.follow).xpos + np.array(camera.lookat)
            with self._culled(data, view):
                mujoco.mjv_updateScene(
                    self.model, data, self._options, None, view,
                    mujoco.mjtCatBit.mjCAT_ALL, self._scene,
                )  # fmt: skip
            viewport = mujoco.MjrRect(0, 0, 2 * self.width, 2 * self.height)
            pixels = np.empty((2 * self.height, 2 * self.width, 3), np.uint8)
            mujoco.mjr_render(viewport, self._scene, self._context)
            mujoco.mjr_readPixels(pixels, None, viewport, self._context)
        pixels = _halve(pixels)
        # OpenGL counts rows from below.
        return np.ascontiguousarray(pixels[:, ::-1] if camera.rotated else pixels[::-1])

    def close(self) -> None:
        """Give back the context; the next frame opens a new one."""
        with self._lock:
            if self._gl is not None:
                with self._current():
                    self._context.free()
                self._gl.free()
                self._gl = self._context = None

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Hold the context in this thread; let go of it, so that another thread may take it."""
        egl = _egl()
        if self._gl is None:
            try:
                self._gl = egl.GLContext(2 * self.width, 2 * self.height)
            except Exception as error:
                raise SimulationError(
                    f'cannot open an EGL context ({error}); on Debian and Ubuntu install '
                    'libegl1 libegl-mesa0 libgl1-mesa-dri'
                ) from error
        _at_exit()
        self._gl.make_current()
        try:
            if self._context is None:
                self._context = self._open()
            yield
        finally:
            none = egl.EGL.EGL_NO_SURFACE
            egl.EGL.eglMakeCurrent(egl.EGL_DISPLAY, none, none, egl.EGL.EGL_NO_CONTEXT)

    def _open(self) -> Any:
        quality, size = self.model.vis.quality, self.model.vis.global_
        kept = quality.shadowsize, quality.offsamples, size.offwidth, size.offheight
        quality.shadowsize, quality.offsamples = 1024 if self._fine else 0, 0
        size.offwidth, size.offheight = 2 * self.width, 2 * self.height
        context = mujoco.MjrContext(self.model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)
        quality.shadowsize, quality.offsamples, size.offwidth, size.offheight = kept
        _open_renderers.add(self)
        return context

    @contextlib.contextmanager
    def _culled(self, data: Any, view: Any) -> Iterator[None]:
        """Put geoms that `view` cannot see into a group that is not drawn, for one frame."""
        if not self._cull:
            yield
            return
        mujoco.mjv_updateCamera(self.model, data, view, self._scene)
        outside = self._outside(data)
        groups = self.model.geom_group
        kept = groups.copy()
        groups[outside] = _HIDDEN_GROUP
        try:
            yield
        finally:
            groups[:] = kept

    def _outside(self, data: Any) -> NDArray[np.bool_]:
        """Geoms whose bounding box lies beyond one side of the view; bool [ngeom]."""
        eye, other = self._scene.camera
        forward, up = np.array(eye.forward), np.array(eye.up)
        right = np.cross(forward, up)
        # Slopes of the sides; the picture's width follows from its height and its proportions.
        tall = eye.frustum_top / eye.frustum_near
        wide = tall * self.width / self.height
        # Outward normals of the four sides and of the plane behind which nothing is seen; [5, 3]
        sides = np.array([up, -up, right, -right, -forward])
        sides[:4] -= np.array([tall, tall, wide, wide])[:, None] * forward
        box, turn = self.model.geom_aabb, data.geom_xmat.reshape(-1, 3, 3)  # [ngeom, 6]
        centre = data.geom_xpos + np.einsum('gij,gj->gi', turn, box[:, :3])
        offset = centre - (np.array(eye.pos) + other.pos) / 2
        along = np.abs(np.einsum('gij,si->sgj', turn, sides))  # [5, ngeom, 3]
        outside = (sides @ offset.T > np.einsum('sgj,gj->sg', along, box[:, 3:])).any(0)
        # A plane has no bounds (radius 0) and is always drawn.
        return outside & (self.model.geom_rbound > 0)


def _halve(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Average blocks of two by two; [2H, 2W, 3] -> [H, W, 3]."""
    wide = pixels.astype(np.uint16)
    wide = wide[::2] + wide[1::2]
    wide = wide[:, ::2] + wide[:, 1::2]
    return ((wide + 2) >> 2).astype(np.uint8)


def _close_all() -> None:
    """Close what is still open while EGL is still there: it complains afterwards."""
    for renderer in list(_open_renderers):
        renderer.close()


def _egl() -> Any:
    try:
        from mujoco import egl
    except (ImportError, AttributeError) as error:
        raise SimulationError(
            f'EGL cannot be loaded ({error}); on Debian and Ubuntu install '
            'libegl1 libegl-mesa0 libgl1-mesa-dri'
        ) from error
    return egl


@functools.cache
def _at_exit() -> None:
    # Registered after the first context, with which EGL registered its own end: it runs before.
    atexit.register(_close_all)
