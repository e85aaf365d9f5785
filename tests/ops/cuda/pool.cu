/* Pools, copies and the write path on the device; conversions to e4m3 on the host too.
 *
 *     pool [seed]      prints "N passed, M failed"; exits 1 on any failure */
#include "tests/ops/cuda/oracle.cuh"

#include <math.h>
#include <random>
#include <string.h>
#include <string>
#include <time.h>
#include <unistd.h>
#include <vector>

using std::vector;

static int n_passed, n_failed;
static std::mt19937_64 rng;

static void verdict(bool ok, const char *what)
{
	n_passed += ok;
	n_failed += !ok;
	if (!ok)
		printf("FAILED %s\n", what);
}

static vector<uint8_t> random_bytes(size_t n)
{
	vector<uint8_t> x(n);
	for (uint8_t &b : x)
		b = (uint8_t)rng();
	return x;
}

/* Another mapping of the allocation, by its descriptor, outlives the first. */
static void adoption(nsv_cuda *cuda)
{
	nsv_err err;
	nsv_cuda_pool a, b;
	vector<uint8_t> in = random_bytes(5000000), out(in.size());
	verdict(nsv_cuda_pool_new(cuda, in.size(), &a, &err) == 0, "a pool");
	CHECK(cudaMemcpy(a.base, in.data(), in.size(), cudaMemcpyHostToDevice));
	int fd = dup(a.fd);
	nsv_cuda_pool_free(&a);
	verdict(a.fd == -1 && !a.base, "a freed pool holds nothing");
	verdict(nsv_cuda_pool_adopt(cuda, fd, in.size(), &b, &err) == 0, "an adopted pool");
	CHECK(cudaMemcpy(out.data(), b.base, out.size(), cudaMemcpyDeviceToHost));
	verdict(in == out, "the bytes of an adopted pool");
	nsv_cuda_pool_free(&b);
	verdict(nsv_cuda_pool_new(cuda, 0, &a, &err) == -EINVAL, "an empty pool is refused");
	verdict(nsv_cuda_pool_new(cuda, (size_t)1 << 50, &a, &err) < 0, "a pool beyond the device");
}

/* Pieces, neighbours among them, there and back; nothing else is touched. */
static void copies(nsv_cuda *cuda)
{
	nsv_err err;
	nsv_cuda_pool pool;
	size_t n = (size_t)4 << 20;
	vector<uint8_t> host = random_bytes(n), back(n, 7), want(n, 7);
	nsv_cuda_piece pieces[] = {{0, 4096, 8192}, {8192, 12288, 4096},
		{1 << 20, 2 << 20, 1 << 20}, {n - 512, 0, 512}};
	if (nsv_cuda_pool_new(cuda, n, &pool, &err) < 0)
		return verdict(false, err.text);
	verdict(nsv_cuda_host_register(cuda, host.data(), n, &err) == 0, "registering");
	verdict(nsv_cuda_copy(cuda, &pool, host.data(), n, pieces, 4, true, 0, &err) == 0, "in");
	verdict(nsv_cuda_copy(cuda, &pool, back.data(), n, pieces, 4, false, 0, &err) == 0, "out");
	CHECK(cudaDeviceSynchronize());
	for (const nsv_cuda_piece &p : pieces)
		memcpy(&want[p.host_off], &host[p.host_off], p.len);
	verdict(back == want, "the bytes of the pieces");
	pieces[3].device_off++;
	verdict(nsv_cuda_copy(cuda, &pool, host.data(), n, pieces, 4, true, 0, &err) == -EINVAL,
		"a piece beyond the pool is refused");
	verdict(nsv_cuda_host_unregister(cuda, host.data(), &err) == 0, "unregistering");
	nsv_cuda_pool_free(&pool);
}

/* ---- The write path, in double: every type of rows, K and V as they are or packed. */

struct append_case {
	nsv_attn_shape shape;
	nsv_cuda_kv kv;
	uint32_t n_rot, n_row;
	bool neox, has_norm;
};

static size_t type_size(uint32_t dtype)
{
	return dtype == NSV_F32 ? 4 : 2;
}

/* The i-th element of an array of a type. */
static double element(const vector<uint8_t> &x, uint32_t dtype, size_t i)
{
	uint16_t bits;
	float f;
	if (dtype == NSV_F32) {
		memcpy(&f, &x[i * 4], 4);
		return f;
	}
	memcpy(&bits, &x[i * 2], 2);
	return dtype == NSV_F16 ? (double)__half2float(__half(__half_raw{bits}))
				: (double)__bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{bits}));
}

static void set_element(vector<uint8_t> &x, uint32_t dtype, size_t i, float f)
{
	__half_raw half = __float2half_rn(f);
	__nv_bfloat16_raw bf16 = __float2bfloat16_rn(f);
	if (dtype == NSV_F32)
		memcpy(&x[i * 4], &f, 4);
	else
		memcpy(&x[i * 2], dtype == NSV_F16 ? &half.x : &bf16.x, 2);
}

/* From a value to the next of the type, at most: what two roundings may differ by. */
static double spacing(uint32_t dtype, double x)
{
	double digits = dtype == NSV_F32 ? 1e-6 : dtype == NSV_F16 ? 0x1p-10 : 0x1p-7;
	return fmax(fabs(x) * digits, dtype == NSV_F16 ? 0x1p-24 : 0.0);
}

/* The value of an e4m3 byte, from its bits alone. */
static double e4m3(uint8_t byte)
{
	int exponent = byte >> 3 & 15, fraction = byte & 7;
	double x = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
	if ((byte & 0x7f) == 0x7f)
		return NAN;
	return byte & 0x80 ? -x : x;
}

/* The nearest e4m3, by looking at all of them; of two, the even one. */
static uint8_t nearest_e4m3(double x)
{
	uint8_t sign = signbit(x) ? 0x80 : 0, best = 0;
	for (uint8_t i = 1; i < 0x7f; i++) {
		double now = fabs(e4m3(i) - fabs(x)), before = fabs(e4m3(best) - fabs(x));
		if (now < before || (now == before && i % 2 == 0))
			best = i;
	}
	return best | sign;
}

/* The least allowed scale that 448 times is not below `max`, by trying them. */
static double scale_of(double max)
{
	int exponent = -15;
	while (exponent < 7 && max > 448.0 * ldexp(1.0, exponent))
		exponent++;
	return ldexp(1.0, exponent);
}

/* Rounding and scales on the host, against those: also where there is no device. */
static void conversions()
{
	std::normal_distribution<float> normal_of;
	bool rounds = true, scales = true;
	for (int i = 0; i < 100000; i++) {
		float x = ldexpf(normal_of(rng), (int)(rng() % 40) - 25);
		if (i % 4 == 0) /* a tie, or next to one */
			x = (float)((e4m3(i / 4 % 0x7e) + e4m3(i / 4 % 0x7e + 1)) / 2);
		if (i % 8 == 0)
			x = nextafterf(x, i % 16 ? INFINITY : 0.0f);
		rounds = rounds && nsv::to_e4m3(x) == nearest_e4m3(x) &&
			 nsv::to_e4m3(-x) == nearest_e4m3(-(double)x);
		scales = scales && ldexp(1.0, nsv::e4m3_exponent(fabsf(x))) == scale_of(fabs(x));
	}
	for (int e = -20; e < 12; e++) {
		float at = ldexpf(448.0f, e), above = nextafterf(at, INFINITY);
		scales = scales && ldexp(1.0, nsv::e4m3_exponent(at)) == scale_of(at) &&
			 ldexp(1.0, nsv::e4m3_exponent(above)) == scale_of(above);
	}
	verdict(rounds, "rounding to e4m3");
	verdict(scales, "scales of e4m3");
	verdict(nsv::to_e4m3(NAN) == 0 && nsv::to_e4m3(INFINITY) == 0x7e &&
			nsv::to_e4m3(-INFINITY) == 0xfe && nsv::to_e4m3(1e30f) == 0x7e,
		"what is no number, and what is too large");
	verdict(nsv::e4m3_exponent(0.0f) == -15 && nsv::e4m3_exponent(INFINITY) == 7,
		"scales of nothing and of infinity");
}

/* A case's numbers on the host and on the device. */
struct append_data {
	uint32_t width;
	vector<uint8_t> rows, got, k, v; /* rows before and after, pools after */
	vector<float> cs, norm;
	vector<int64_t> slots;
};

static append_data draw(const append_case &c)
{
	const nsv_attn_shape &s = c.shape;
	std::normal_distribution<float> normal_of;
	append_data x;
	x.width = (s.n_head + 2 * s.n_kv_head) * s.head_dim;
	x.rows.resize((size_t)c.n_row * x.width * type_size(s.kv_dtype));
	x.cs.resize((size_t)c.n_row * c.n_rot + 1);
	x.norm.resize(2 * s.head_dim);
	for (size_t i = 0; i < (size_t)c.n_row * x.width; i++)
		set_element(x.rows, s.kv_dtype, i, normal_of(rng));
	for (vector<float> *v : {&x.cs, &x.norm})
		for (float &f : *v)
			f = normal_of(rng);
	for (uint32_t r = 0; r < c.n_row; r++)
		x.slots.push_back(
			r % 5 == 4 ? -1 : (int64_t)(s.n_block * s.block_size - 1 - r * 3));
	return x;
}

template <typename T> static T *upload(arena &mem, const vector<T> &x)
{
	T *p = mem.take<T>(x.size());
	CHECK(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
	return p;
}

template <typename T> static void download(vector<T> &x, const T *p)
{
	CHECK(cudaMemcpy(x.data(), p, x.size() * sizeof(T), cudaMemcpyDeviceToHost));
}

/* Runs the kernel over pools of 0xff: NaN of every type. */
static void run_append(nsv_cuda *cuda, arena &mem, const append_case &c, append_data &x)
{
	const nsv_attn_shape &s = c.shape;
	uint32_t d = s.head_dim;
	bool packed = c.kv.dtype == NSV_CUDA_KV_E4M3;
	size_t elem = type_size(s.kv_dtype);
	mem.at = 0;
	x.k.assign((size_t)s.n_block * s.k.block_stride * (packed ? 1 : elem), 0xff);
	x.v = x.k;
	x.got.resize(x.rows.size());
	uint8_t *rows = upload(mem, x.rows), *k = upload(mem, x.k), *v = upload(mem, x.v);
	float *norm = upload(mem, x.norm);
	nsv_cuda_append args = {rows, rows + s.n_head * d * elem,
		rows + (s.n_head + s.n_kv_head) * d * elem, x.width, upload(mem, x.cs),
		c.has_norm ? norm : nullptr, c.has_norm ? norm + d : nullptr, 1e-6f, c.n_rot,
		c.neox, upload(mem, x.slots), c.n_row};
	nsv_err err;
	int r = nsv_cuda_kv_append(cuda, &s, packed ? &c.kv : nullptr, &args, k, v, 0, &err);
	verdict(r == 0, "append");
	download(x.got, rows);
	download(x.k, k);
	download(x.v, v);
}

/* What a head becomes, in double. */
static vector<double> turned(
	const append_case &c, const append_data &x, uint32_t row, uint32_t head, bool is_q)
{
	uint32_t d = c.shape.head_dim;
	const float *cs = &x.cs[row * c.n_rot], *weight = &x.norm[is_q ? 0 : d];
	vector<double> y(d);
	double sum = 0.0;
	for (uint32_t i = 0; i < d; i++) {
		y[i] = element(x.rows, c.shape.kv_dtype, (size_t)row * x.width + head * d + i);
		sum += y[i] * y[i];
	}
	for (uint32_t i = 0; c.has_norm && i < d; i++)
		y[i] *= weight[i] / sqrt(sum / d + 1e-6);
	for (uint32_t i = 0; i < c.n_rot / 2; i++) {
		uint32_t a = c.neox ? i : 2 * i, b = c.neox ? i + c.n_rot / 2 : 2 * i + 1;
		double ya = y[a], yb = y[b];
		y[a] = ya * cs[2 * i] - yb * cs[2 * i + 1];
		y[b] = ya * cs[2 * i + 1] + yb * cs[2 * i];
	}
	return y;
}

/* fp32's own error, and a step of the type where that decides a rounding. */
static bool is_close(const vector<double> &want, const vector<uint8_t> &got, uint32_t dtype,
	size_t at, size_t stride)
{
	for (size_t i = 0; i < want.size(); i++) {
		double x = element(got, dtype, at + i * stride);
		double allowed = 1e-5 + 1e-4 * fabs(want[i]);
		if (dtype != NSV_F32)
			allowed = 0.51 * spacing(dtype, want[i]) + 1e-5;
		if (!(fabs(x - want[i]) <= allowed))
			return false;
	}
	return true;
}

/* A packed head: a scale that its largest magnitude asks for, and dims nearest under it. */
static bool is_packed_close(const vector<double> &want, const vector<uint8_t> &got, size_t at,
	size_t stride, size_t scale_at)
{
	float scale;
	double max = 0.0;
	memcpy(&scale, &got[scale_at], sizeof(scale));
	for (double x : want)
		max = fmax(max, fabs(x));
	if (scale != scale_of(max * (1 - 1e-5)) && scale != scale_of(max * (1 + 1e-5)))
		return false;
	for (size_t i = 0; i < want.size(); i++) {
		double x = e4m3(got[at + i * stride]), y = want[i] / scale;
		double half_step = ldexp(1.0, (int)fmax(floor(log2(fabs(y) + 1e-30)), -6) - 4);
		if (!(fabs(x - y) <= half_step * (1 + 1e-3) + 1e-5 / scale))
			return false;
	}
	return true;
}

/* Element 0 of a head in a slot. */
static size_t place_of(const append_case &c, const nsv_kv_layout &layout, int64_t slot, uint32_t h)
{
	return (size_t)(slot / c.shape.block_size * layout.block_stride +
			slot % c.shape.block_size * layout.tok_stride + h * layout.head_stride);
}

/* The first byte of its scale. */
static size_t scale_place(const append_case &c, int64_t slot, uint32_t h)
{
	return (size_t)(slot / c.shape.block_size * c.shape.k.block_stride + c.kv.k_scales +
			(h * c.shape.block_size + slot % c.shape.block_size) * 4);
}

/* K or V of a row in its slot. */
static bool is_stored(const append_case &c, const append_data &x, uint32_t row, uint32_t h,
	const vector<double> &want, bool is_v)
{
	const nsv_kv_layout &layout = is_v ? c.shape.v : c.shape.k;
	const vector<uint8_t> &pool = is_v ? x.v : x.k;
	size_t at = place_of(c, layout, x.slots[row], h), stride = (size_t)layout.dim_stride;
	if (c.kv.dtype == NSV_CUDA_KV_E4M3)
		return is_packed_close(want, pool, at, stride, scale_place(c, x.slots[row], h));
	return is_close(want, pool, c.shape.kv_dtype, at, stride);
}

/* Is all that no head and no scale went to as it was? */
static bool is_untouched(const append_case &c, const append_data &x, const vector<uint8_t> &pool)
{
	const nsv_attn_shape &s = c.shape;
	bool packed = c.kv.dtype == NSV_CUDA_KV_E4M3;
	size_t elem = packed ? 1 : type_size(s.kv_dtype);
	vector<bool> stored(pool.size());
	for (int64_t slot : x.slots)
		for (uint32_t h = 0; slot >= 0 && h < s.n_kv_head; h++) {
			for (uint32_t i = 0; i < s.head_dim * elem; i++)
				stored[(place_of(c, s.k, slot, h) + i / elem * s.k.dim_stride) *
						elem +
					i % elem] = true;
			for (uint32_t i = 0; packed && i < 4; i++)
				stored[scale_place(c, slot, h) + i] = true;
		}
	for (size_t i = 0; i < pool.size(); i++)
		if (!stored[i] && pool[i] != 0xff)
			return false;
	return true;
}

static void append(nsv_cuda *cuda, arena &mem, const append_case &c)
{
	const nsv_attn_shape &s = c.shape;
	append_data x = draw(c);
	run_append(cuda, mem, c, x);
	bool q_ok = true, k_ok = true, v_ok = true;
	append_case as_is = c;
	as_is.n_rot = 0;
	as_is.has_norm = false;
	for (uint32_t r = 0; r < c.n_row; r++) {
		for (uint32_t h = 0; h < s.n_head; h++)
			q_ok = q_ok && is_close(turned(c, x, r, h, true), x.got, s.kv_dtype,
					       (size_t)r * x.width + h * s.head_dim, 1);
		for (uint32_t h = 0; x.slots[r] >= 0 && h < s.n_kv_head; h++) {
			uint32_t k = s.n_head + h, v = k + s.n_kv_head;
			k_ok = k_ok && is_stored(c, x, r, h, turned(c, x, r, k, false), false);
			v_ok = v_ok && is_stored(c, x, r, h, turned(as_is, x, r, v, false), true);
		}
	}
	std::string what = "append of " + std::to_string(s.head_dim) + " dims, type " +
			   std::to_string(s.kv_dtype) + (c.kv.dtype ? " packed: " : ": ");
	verdict(q_ok, (what + "q turned in place").c_str());
	verdict(k_ok, (what + "k in its slots").c_str());
	verdict(v_ok, (what + "v in its slots").c_str());
	verdict(is_untouched(c, x, x.k) && is_untouched(c, x, x.v),
		(what + "other slots untouched").c_str());
}

static append_case make_case(
	uint32_t dtype, bool packed, uint32_t dim, bool neox, bool has_norm, uint32_t n_rot)
{
	append_case c = {};
	nsv_attn_shape &s = c.shape;
	s.n_head = 6;
	s.n_kv_head = 2;
	s.head_dim = dim;
	s.block_size = 16;
	s.n_block = 9;
	s.kv_dtype = dtype;
	s.k = {16 * 2 * (int64_t)dim, dim, 16 * (int64_t)dim, 1};
	if (packed) {
		c.kv = {NSV_CUDA_KV_E4M3, s.k.block_stride, s.k.block_stride};
		s.k.block_stride += 16 * 2 * 4;
	}
	s.v = s.k;
	c.n_rot = n_rot;
	c.n_row = 17;
	c.neox = neox;
	c.has_norm = has_norm;
	return c;
}

static void appends(nsv_cuda *cuda, arena &mem)
{
	for (uint32_t dtype : {NSV_F32, NSV_F16, NSV_BF16})
		for (bool packed : {false, true})
			for (uint32_t dim : {64u, 80u, 96u, 128u, 192u, 256u})
				for (int way = 0; way < 4; way++)
					append(cuda, mem,
						make_case(dtype, packed, dim, way & 1, way & 2,
							dim == 80 ? 32 : dim));
	for (bool packed : {false, true})
		append(cuda, mem, make_case(NSV_BF16, packed, 64, true, false, 0));
}

/* Is fp16 element i of a pool what `want` is stored as? */
static bool is_kv_of(const vector<uint8_t> &pool, size_t i, double want)
{
	uint16_t bits;
	memcpy(&bits, &pool[i * 2], 2);
	if (!(fabs(want) <= 65536.0))
		return bits == NSV_F16_NAN;
	if (fabs(want) >= 65472.0) /* two roundings decide */
		return bits == NSV_F16_NAN || (bits & 0x7fff) == NSV_F16_MAX;
	return is_close({want}, pool, NSV_F16, i, 1);
}

/* K and V that fp16 does not hold: NaN, as the CPU stores them, and never infinity. */
static void beyond_f16(nsv_cuda *cuda, arena &mem)
{
	static const float edges[] = {65504.0f, -65504.0f, INFINITY, -INFINITY, NAN, 40000.0f};
	append_case c = make_case(NSV_F16, false, 64, true, false, 64);
	append_data x = draw(c);
	uint32_t d = c.shape.head_dim, k = c.shape.n_head, v = k + c.shape.n_kv_head;
	for (uint32_t r = 0; r < c.n_row; r++)
		for (uint32_t i = k * d; i < x.width; i += 1 + rng() % 8)
			set_element(x.rows, NSV_F16, r * x.width + i, edges[rng() % 6]);
	run_append(cuda, mem, c, x);
	bool k_ok = true, v_ok = true;
	size_t n_nan = 0;
	for (uint32_t r = 0; r < c.n_row; r++)
		for (uint32_t h = 0; x.slots[r] >= 0 && h < c.shape.n_kv_head; h++) {
			vector<double> want = turned(c, x, r, k + h, false);
			size_t at = place_of(c, c.shape.k, x.slots[r], h);
			for (uint32_t i = 0; i < d; i++) {
				size_t from = r * x.width + (v + h) * d + i;
				float f = (float)element(x.rows, NSV_F16, from);
				uint16_t bits;
				memcpy(&bits, &x.v[(at + i) * 2], 2);
				v_ok = v_ok && bits == nsv_f32_f16_kv(f);
				n_nan += bits == NSV_F16_NAN;
				k_ok = k_ok && is_kv_of(x.k, at + i, want[i]);
			}
		}
	verdict(k_ok, "K beyond fp16 is NaN");
	verdict(v_ok && n_nan > 0, "V beyond fp16 is what the CPU stores");
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], nullptr, 0) : (uint64_t)time(nullptr);
	struct nsv_cuda_probe probe;
	nsv_cuda *cuda;
	nsv_err err;
	arena mem;
	printf("seed %llu\n", (unsigned long long)seed);
	rng.seed(seed);
	conversions();
	if (nsv_cuda_probe(&probe, &err) < 0) {
		printf("%d passed, %d failed; the rest skipped: %s\n", n_passed, n_failed,
			err.text);
		return n_failed != 0;
	}
	if (nsv_cuda_open(0, &cuda, &err) < 0) {
		printf("FAILED %s\n", err.text);
		return 1;
	}
	mem.open((size_t)64 << 20);
	adoption(cuda);
	copies(cuda);
	appends(cuda, mem);
	beyond_f16(cuda, mem);
	nsv_cuda_close(cuda);
	printf("%d passed, %d failed\n", n_passed, n_failed);
	return n_failed != 0;
}
