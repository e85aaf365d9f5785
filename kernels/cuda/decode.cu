/* Paged attention for few query rows a sequence: reads the history once, at the rate of memory.
 *
 * A block of threads takes a run of the plan's line (work.cuh): for each item, a tile of rows
 * (query row, head of the group) x the keys of one KV head. The two roles are decode_load.cuh and
 * decode_consume.cuh.
 *
 *     producer warp   block table -> boxes of K and V -> ring of slots (64 keys each, swizzled)
 *     4 consumer      S^T = K Q^T, 16 keys of a tile a warp | row maxima through shared memory |
 *     warps           P^T to shared memory | O^T += V^T P^T, a quarter of the dims a warp
 *
 * Keys and dims are the products' rows, so that 8 rows of the item fill their columns: groups are
 * rarely larger. A step is a chain of latencies, and a run of few steps is nothing else: hence both
 * tiles of a step side by side, and what is known before q is done before q is there.
 *
 *     slot: panels of 64 dims; a row is 128 bytes, its 16-byte pieces at piece ^ (row % 8)
 *     ring: K0 K1 V0 V1 | K2 K3 V2 V3 ... by steps, each slot with a full and an empty barrier
 *
 * Chunks are folded in order (order.cuh). A run that holds an item from its first tile folds as it
 * goes; one that enters an item in the middle leaves a partial a chunk. Partials are folded as they
 * come, where they are few (decode_entries.cuh), else once all of an item's runs have arrived
 * (decode_merge.cuh). Integers alone say what is there; no order depends on who comes when, and
 * nobody waits for anyone without end.
 *
 * Floor: 2 * n_kv * n_kv_head * head_dim * 2 bytes a sequence at the device's read rate; products
 * are 8 / group times what is needed. */
#include "kernels/cuda/decode_consume.cuh"
#include "kernels/cuda/decode_load.cuh"
#include "kernels/cuda/launch.cuh"

namespace nsv
{

template <typename E, int D, int NT, bool PACKED>
__global__ void __launch_bounds__(N_THREAD, (config<D, NT, PACKED>::per_sm))
	decode_kernel(const __grid_constant__ decode_args args)
{
	using C = config<D, NT, PACKED>;
	extern __shared__ char raw[];
	__shared__ piece pieces[2];
	layout<D, NT, PACKED> smem = {(smem_addr(raw) + 1023) & ~1023u};
	if (threadIdx.x == N_CONSUMER) {
		tma_prefetch_map(&args.k);
		tma_prefetch_map(&args.v);
		for (int i = 0; i < C::n_slot; i++) {
			mbar_init(smem.full(i), 1);
			mbar_init(smem.empty(i), C::slot_arrivals);
		}
		for (int i = 0; i < 2; i++) {
			mbar_init(smem.piece_full(i), 1);
			mbar_init(smem.q_full(i), 32);
			mbar_init(smem.q_empty(i), N_CONSUMER);
		}
		mbar_init_fence();
	}
	__syncthreads();
	if (threadIdx.x >= N_CONSUMER) {
		producer<D, NT, PACKED>(args, smem, pieces).load();
	} else {
		consume<E, D, NT, PACKED>(args, smem, pieces);
	}
}

/* ---- Host */

using kernel_fn = void (*)(const decode_args);

struct instance {
	int32_t dim_pad, row_tile, smem_bytes, per_sm;
	bool packed;
	kernel_fn fn[2]; /* bf16, fp16 */
};

template <int D, int NT, bool PACKED> constexpr instance make_instance()
{
	using C = config<D, NT, PACKED>;
	return {D, C::rows, C::smem_bytes, C::per_sm, PACKED,
		{decode_kernel<__nv_bfloat16, D, NT, PACKED>,
			decode_kernel<__half, D, NT, PACKED>}};
}

static const instance instances[] = {
	make_instance<64, 1, false>(),
	make_instance<64, 2, false>(),
	make_instance<64, 4, false>(),
	make_instance<64, 8, false>(),
	make_instance<128, 1, false>(),
	make_instance<128, 2, false>(),
	make_instance<128, 4, false>(),
	make_instance<128, 8, false>(),
	make_instance<256, 1, false>(),
	make_instance<256, 2, false>(),
	make_instance<256, 4, false>(),
	make_instance<64, 1, true>(),
	make_instance<64, 2, true>(),
	make_instance<64, 4, true>(),
	make_instance<64, 8, true>(),
	make_instance<128, 1, true>(),
	make_instance<128, 2, true>(),
	make_instance<128, 4, true>(),
	make_instance<128, 8, true>(),
	make_instance<256, 1, true>(),
	make_instance<256, 2, true>(),
	make_instance<256, 4, true>(),
};

static const instance *find_instance(const decode_config &config)
{
	for (const instance &i : instances)
		if (i.dim_pad == config.dim_pad && i.row_tile == config.row_tile &&
			i.packed == config.packed)
			return &i;
	return nullptr;
}

decode_config decode_choose(const nsv_attn_shape &shape, bool packed, uint64_t max_rows)
{
	int32_t dim_pad = shape.head_dim <= 64 ? 64 : shape.head_dim <= 128 ? 128 : 256;
	int32_t most = dim_pad == 256 ? 32 : 64, row_tile = ROW_TILE;
	while (row_tile < most && (uint64_t)row_tile < max_rows)
		row_tile *= 2;
	return {shape.kv_dtype == NSV_F16, packed, dim_pad, row_tile};
}

int decode_load()
{
	return load_instances(instances);
}

int32_t decode_n_block(const decode_config &config, int n_sm)
{
	const instance *i = find_instance(config);
	return i ? n_sm * i->per_sm : 0;
}

int decode_launch(const decode_config &config, const decode_args &args, int32_t n_block, bool early,
	cudaStream_t stream)
{
	const instance *i = find_instance(config);
	if (!i)
		return -ENOTSUP;
	launch_shape shape = {n_block, N_THREAD, i->smem_bytes, early};
	return launch_kernel(i->fn[config.f16], args, shape, stream);
}

} // namespace nsv
