"""A dense product of bfloat16 matrices for Hopper in CuTe DSL: c = a @ b, row-major, by TMA and WGMMA."""
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as sm90
from cute_dsl.gemm_roles import DTYPE, GROUP, TOTAL, Roles
from cutlass import pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum

SHARED, BARRIERS, LOADING, MULTIPLYING = 232448, 1024, 40, 232  # bytes of a CTA and of its barriers; registers


def part(atom, shared, tensor, shape, mine=0, of=1):
    """Returns the tiles in shared memory and in a tensor as TMA copies them: the part ``mine`` of ``of`` CTAs."""
    tiles = cute.group_modes(cute.local_tile(tensor, shape, (None, None)), 0, 2)
    return cpasync.tma_partition(atom, mine, cute.make_layout(of), cute.group_modes(shared, 0, 2), tiles)


@dataclass(frozen=True)
class Gemm(Roles):
    """One warpgroup loads, two multiply. They share a tile, or with PINGPONG each takes every second tile."""

    TILE: tuple[int, int, int]  # along M, N, K
    CLUSTER: tuple[int, int]  # CTAs along M, N
    PINGPONG: bool
    SWIZZLE: int  # rows of clusters in a band of tiles
    clusters: int  # to launch

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream: cuda.CUstream):
        (rows, columns, depth), (along_m, along_n) = self.TILE, self.CLUSTER
        b = cute.make_tensor(b.iterator, cute.select(b.layout, mode=[1, 0]))  # (N, K), as WGMMA has it
        outputs = 2 if self.PINGPONG else 1  # tiles at a time
        stages = (SHARED - BARRIERS - 2 * rows * columns * outputs) // (2 * depth * (rows + columns))
        mma = sm90.make_trivial_tiled_mma(
            DTYPE, DTYPE, OperandMajorMode.K, OperandMajorMode.MN, TOTAL, (2 // outputs, 1, 1), (64, columns)
        )
        a_l = sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, self.TILE, DTYPE, stages)
        b_l = sm90.make_smem_layout_b(LayoutEnum.COL_MAJOR, self.TILE, DTYPE, stages)
        c_l = sm90.make_smem_layout_epi(DTYPE, LayoutEnum.ROW_MAJOR, (rows, columns), outputs)
        one, many = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileG2SMulticastOp()
        load_a, a = cpasync.make_tiled_tma_atom(many if along_n > 1 else one, a, a_l, (rows, depth), along_n)
        load_b, b = cpasync.make_tiled_tma_atom(many if along_m > 1 else one, b, b_l, (columns, depth), along_m)
        store, c = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), c, c_l, (rows, columns))
        grid, cluster = (along_m * self.clusters, along_n, 1), (along_m, along_n, 1)
        made = self.kernel(mma, (load_a, load_b, store), (a, b, c), a_l, b_l, c_l, stages)
        made.launch(grid=grid, block=(3 * GROUP, 1, 1), cluster=cluster, stream=stream, min_blocks_per_mp=1)

    @cute.kernel
    def kernel(self, mma: cute.TiledMma, atoms, tensors, a_l: cute.ComposedLayout, b_l: cute.ComposedLayout,
               c_l: cute.ComposedLayout, stages: cutlass.Constexpr):
        (rows, columns, depth), (along_m, along_n), memory = self.TILE, self.CLUSTER, SmemAllocator()
        warp, at = cute.arch.make_warp_uniform(cute.arch.warp_idx()), cute.arch.block_in_cluster_idx()[:2]
        cluster, ctas = cute.arch.block_idx()[0] // along_m, cute.make_layout((1, along_m, along_n, 1))
        a_s, b_s, c_s = (memory.allocate_tensor(DTYPE, x.outer, 1024, swizzle=x.inner) for x in (a_l, b_l, c_l))
        to_a, from_a = part(atoms[0], a_s, tensors[0], (rows, depth), at[1], along_n)
        to_b, from_b = part(atoms[1], b_s, tensors[1], (columns, depth), at[0], along_m)
        masks = [cpasync.create_tma_multicast_mask(ctas, (0, *at, 0), mode) if along > 1 else None
                 for mode, along in ((2, along_n), (1, along_m))]
        arrivals = (along_m + along_n - 1) * (4 if self.PINGPONG else 8)  # a warp signals all CTAs that load for it
        loader, users = (pipeline.CooperativeGroup(pipeline.Agent.Thread, count) for count in (1, arrivals))
        ring = pipeline.PipelineTmaAsync.create(
            num_stages=stages, producer_group=loader, consumer_group=users, cta_layout_vmnk=ctas,
            tx_count=2 * depth * (rows + columns), barrier_storage=memory.allocate_array(cutlass.Int64, 2 * stages),
        )
        (m, n), blocks = tensors[2].shape, cute.ceil_div(tensors[0].shape[1], depth)
        grid = cute.ceil_div(m, rows * along_m), cute.ceil_div(n, columns * along_n)
        if warp < 4:
            cute.arch.setmaxregister_decrease(LOADING)
            if warp == 0:
                self.load(ring, cluster, grid, at, atoms[:2], (from_a, from_b), (to_a, to_b), masks, blocks)
        else:
            cute.arch.setmaxregister_increase(MULTIPLYING)
            out = part(atoms[2], c_s, tensors[2], (rows, columns))
            self.multiply(ring, cluster, grid, at, mma, a_s, b_s, c_s, atoms[2], *out, warp, blocks)
