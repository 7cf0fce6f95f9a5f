"""What the warps of `hopper_gemm.Gemm` do: one loads tiles by TMA, eight multiply them by WGMMA and store."""
import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as sm90
from cutlass import pipeline
from cutlass.cute.nvgpu import warpgroup
from cutlass.tensor_utils import LayoutEnum

DTYPE, TOTAL, GROUP = cutlass.BFloat16, cutlass.Float32, 128  # GROUP: threads of a warpgroup


class Roles:
    @cute.jit
    def place(self, tile, tiles_m, tiles_n, at_m, at_n):
        """Returns which tile of c a CTA computes. Clusters that run at a time share parts of a and b in L2."""
        band = self.SWIZZLE * tiles_n
        top = tile // band * self.SWIZZLE
        height = cutlass.min(tiles_m - top, self.SWIZZLE)
        return (top + tile % band % height) * self.CLUSTER[0] + at_m, tile % band // height * self.CLUSTER[1] + at_n

    @cute.jit
    def load(self, ring, cluster, grid, at, atoms, sources, targets, masks, blocks):
        """Fills the ring with blocks of a and b, tile after tile."""
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, ring.num_stages)
        for tile in cutlass.range(cluster, grid[0] * grid[1], self.clusters, unroll=1):
            where = self.place(tile, *grid, *at)
            for block in cutlass.range(blocks, unroll=1):
                ring.producer_acquire(state)
                for i in cutlass.range_constexpr(2):  # a, b
                    full, to = ring.producer_get_barrier(state), targets[i][None, state.index]
                    cute.copy(atoms[i], sources[i][None, where[i], block], to, tma_bar_ptr=full, mcast_mask=masks[i])
                state.advance()
        ring.producer_tail(state)  # the other CTAs of the cluster still signal this one

    @cute.jit
    def multiply(self, ring, cluster, grid, at, mma, a_s, b_s, c_s, store, out_s, out_g, warp, blocks):
        """Multiplies the blocks of each tile, and stores it. With PINGPONG, one warpgroup multiplies while the other
        stores. The ring shows only whether a phase is even or odd, so each waits for its turn to read the ring."""
        turns, slot, threads = (2, (warp - 4) // 4, GROUP) if self.PINGPONG else (1, 0, 2 * GROUP)
        tiles = cute.ceil_div(grid[0] * grid[1] - cluster, self.clusters)
        part, stores = (cute.arch.thread_idx()[0] - GROUP) % threads, warp == 4 + 4 * slot
        mine, stages = mma.get_slice(part // GROUP * GROUP), ring.num_stages
        a_f, b_f = mma.make_fragment_A(mine.partition_A(a_s)), mma.make_fragment_B(mine.partition_B(b_s))
        total = cute.make_rmem_tensor(mma.partition_shape_C(self.TILE[:2]), TOTAL)
        out = cute.make_rmem_tensor_like(total, DTYPE)
        to_s = cute.make_tiled_copy_C(sm90.get_smem_store_op(LayoutEnum.ROW_MAJOR, DTYPE, TOTAL), mma).get_slice(part)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        for turn in cutlass.range(slot, tiles, turns, unroll=1):
            (m, n), first = self.place(cluster + turn * self.clusters, *grid, *at), turn * blocks
            state = pipeline.PipelineState(stages, cutlass.Int32(0), first % stages, first // stages % 2)
            used = state.clone()
            total.fill(0.0)
            if self.PINGPONG and turn > 0:
                cute.arch.barrier(barrier_id=3 + slot, number_of_threads=2 * GROUP)
            for block in cutlass.range(blocks, unroll=1):
                ring.consumer_wait(state)
                warpgroup.fence()
                for k in cutlass.range_constexpr(cute.size(a_f, mode=[2])):
                    cute.gemm(mma, total, a_f[None, None, k, state.index], b_f[None, None, k, state.index], total)
                warpgroup.commit_group()
                warpgroup.wait_group(1)  # the products of the block before are complete
                if block > 0:
                    ring.consumer_release(used)
                    used.advance()
                state.advance()
            if self.PINGPONG and turn + 1 < tiles:
                cute.arch.barrier_arrive(barrier_id=4 - slot, number_of_threads=2 * GROUP)
            warpgroup.wait_group(0)
            ring.consumer_release(used)
            out.store(total.load().to(DTYPE))
            cute.arch.cp_async_bulk_wait_group(0, read=True)  # the store before has read c_s
            cute.arch.barrier(barrier_id=1 + slot, number_of_threads=threads)
            cute.copy(to_s, to_s.retile(out), to_s.partition_D(c_s[None, None, slot]))
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=1 + slot, number_of_threads=threads)
            if stores:
                cute.copy(store, out_s[None, slot], out_g[None, m, n])
                cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)
