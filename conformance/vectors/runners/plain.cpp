// Plain attention in C++, forward: an example of a program without a JSON library. g++ -O2 -std=c++17 -o plain plain.cpp
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

using std::string, std::vector;

struct Tensor {
	vector<size_t> shape;
	vector<float> x;
	float at(size_t b, size_t h, size_t i, size_t j) const {
		size_t n[4] = {b, h, i, j}, k = 0, d = 0;
		for (size_t size : shape)
			k = k * size + (size == 1 ? 0 : n[d]), d++;
		return x[k];
	}
};

static string read(const string &path) {
	std::stringstream s;
	s << std::ifstream(path, std::ios::binary).rdbuf();
	return s.str();
}

// member returns what the pattern's group matches, or the default.
static string member(const string &text, const string &pattern, const string &otherwise) {
	std::smatch m;
	return std::regex_search(text, m, std::regex(pattern)) ? m[1].str() : otherwise;
}

static vector<size_t> numbers(const string &text) {
	vector<size_t> list;
	std::stringstream s(text);
	for (string word; std::getline(s, word, ',');)
		list.push_back(std::stoul(word));
	return list;
}

static std::map<string, Tensor> tensors(const string &blob) {
	uint64_t size;
	memcpy(&size, blob.data(), 8);
	string header = blob.substr(8, size), data = blob.substr(8 + size);
	std::map<string, Tensor> all;
	std::regex entry("\"(\\w+)\":\\s*\\{\"dtype\":\\s*\"(\\w+)\",\\s*\"shape\":\\s*\\[([^\\]]*)\\],\\s*\"data_offsets\":\\s*\\[(\\d+),\\s*(\\d+)\\]");
	for (std::sregex_iterator m(header.begin(), header.end(), entry), end; m != end; ++m) {
		Tensor t{numbers((*m)[3]), {}};
		size_t from = std::stoul((*m)[4]), to = std::stoul((*m)[5]), step = (*m)[2] == "BOOL" ? 1 : 4;
		for (size_t at = from; at < to; at += step) {
			int32_t whole = data[at];
			float real = whole;
			if (step == 4)
				memcpy(&whole, &data[at], 4), memcpy(&real, &data[at], 4);
			t.x.push_back((*m)[2] == "I32" ? float(whole) : real);
		}
		all[(*m)[1]] = t;
	}
	return all;
}

int main(int, char **argv) {
	string folder = argv[1], c = read(folder + "/case.json"), features = member(c, "\"features\":\\s*\\[([^\\]]*)\\]", "") + " ";
	auto number = [&](const string &name) { return std::stod(member(c, "\"" + name + "\":\\s*\"?(-?[0-9.e+-]+)", "1e300")); };
	std::regex word("\\w+"), known("gqa|v_dim|scale|window|top_left|shift|softcap|alibi|bias|mask|sink|ragged|dlse");
	for (std::sregex_iterator m(features.begin(), features.end(), word), end; m != end; ++m)
		if (!std::regex_match((*m).str(), known))
			return printf("no %s\n", (*m).str().c_str()), 77;
	if (member(c, "\"dtype\":\\s*\"(\\w+)\"", "") != "f32")
		return puts("f32 alone"), 77;
	auto in = tensors(read(folder + "/inputs.safetensors"));
	size_t B = number("batch"), H = number("heads"), G = number("kv_heads"), N = number("q_len"), M = number("kv_len"), D = number("dim"), E = number("v_dim");
	double left = number("left"), right = number("right"), cap = number("softcap"), scale = number("scale"), shift = number("shift"); // null is no number: 1e300
	bool top = member(c, "\"top_left\":\\s*(true)", "") != "";
	const vector<float> &q = in["q"].x, &k = in["k"].x, &v = in["v"].x;
	vector<float> o, lse;
	for (size_t b = 0; b < B; b++)
		for (size_t h = 0; h < H; h++)
			for (size_t i = 0; i < N; i++) {
				double n = in.count("q_lens") ? in["q_lens"].x[b] : N, m = in.count("kv_lens") ? in["kv_lens"].x[b] : M;
				double diagonal = i + shift + (top ? 0 : m - n), most = in.count("sink") && i < n ? in["sink"].x[h] : -INFINITY, sink = most;
				vector<double> s, sum(E);
				vector<size_t> keys;
				for (size_t j = 0; j < m && i < n; j++) {
					if (j < diagonal - left || j > diagonal + right || (in.count("mask") && !in["mask"].at(b, h, i, j)))
						continue;
					double x = 0;
					for (size_t d = 0; d < D; d++)
						x += double(q[((b * H + h) * N + i) * D + d]) * k[((b * G + h / (H / G)) * M + j) * D + d];
					x *= scale;
					x = cap ? cap * tanh(x / cap) : x;
					x += in.count("bias") ? in["bias"].at(b, h, i, j) : 0;
					double slope = in.count("slopes") ? in["slopes"].at(b, h, 0, 0) : 0;
					x -= std::isfinite(slope) ? slope * fabs(j - diagonal) : NAN;
					s.push_back(x), keys.push_back(j), most = x > most || x != x ? x : most;
				}
				double total = most == -INFINITY ? 0 : exp(sink - most);
				for (size_t a = 0; a < s.size() && most != -INFINITY; a++) {
					total += exp(s[a] - most);
					for (size_t e = 0; e < E; e++)
						sum[e] += exp(s[a] - most) * v[((b * G + h / (H / G)) * M + keys[a]) * E + e];
				}
				for (double x : sum)
					o.push_back(total == 0 ? 0 : x / total);
				lse.push_back(total == 0 ? -INFINITY : log(total) + most);
			}
	std::ostringstream t;
	t << "{\"o\":{\"dtype\":\"F32\",\"shape\":[" << B << "," << H << "," << N << "," << E << "],\"data_offsets\":[0," << 4 * o.size() << "]},\"lse\":{\"dtype\":\"F32\",\"shape\":[" << B << ","
	  << H << "," << N << "],\"data_offsets\":[" << 4 * o.size() << "," << 4 * (o.size() + lse.size()) << "]}}";
	uint64_t size = t.str().size();
	std::ofstream out(folder + "/outputs.safetensors", std::ios::binary);
	out.write((char *)&size, 8) << t.str();
	out.write((char *)o.data(), 4 * o.size()).write((char *)lse.data(), 4 * lse.size());
}
