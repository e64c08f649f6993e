package app

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lanegate/lanegate/api"
)

// buildServer puts the API behind what concerns the process as a whole.
func (a *App) buildServer(cfg Config) error {
	if err := a.registerMetrics(); err != nil {
		return err
	}
	a.health = newHealth(a)
	tokens := make([]api.Token, len(cfg.Tokens))
	for i, t := range cfg.Tokens {
		tokens[i] = api.Token{Name: t.Name, Role: api.Role(t.Role), SHA256: t.SHA256, Classes: t.Classes}
	}
	h := api.New(api.Options{
		Service: a.svc, Log: a.log, Access: a.opts.Access, Registry: a.registry, Tokens: tokens,
		MaxPayload: int64(cfg.Limits.Payload), MaxBatch: int64(cfg.Limits.Batch), MaxDepth: cfg.Limits.Depth,
		Parts: a.health.parts, Version: a.opts.Version, Draining: a.isStopping,
	})
	h = a.endWaits(h)
	if cfg.MetricsPublic {
		h = publicMetrics(h, a.registry)
	}
	if len(cfg.Tokens) == 0 && !cfg.InsecureNoAuth {
		h = loopbackNames(h)
	}
	h = clientAddress(h, cfg.TrustedProxies)
	a.server = api.NewServer(h, a.log)
	return nil
}

func (a *App) registerMetrics() error {
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newPoolCollector(a.store.Pools()),
	} {
		if err := a.registry.Register(c); err != nil {
			return err
		}
	}
	return a.metrics.Register(a.registry, a.svc)
}

// loopbackNames refuses requests that were sent to a name which is not this
// machine's loopback. Without tokens only programs on this machine may call, and a
// web page whose own name was made to resolve to 127.0.0.1 is not one of them.
func loopbackNames(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if host != "localhost" && (err != nil || !ip.IsLoopback()) {
			refuse(w, http.StatusMisdirectedRequest, "host_not_loopback", "without tokens this gateway answers on localhost and loopback addresses only; configure tokens to serve other names. Nothing was done.")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// publicMetrics serves /metrics past the tokens, as the operator asked.
func publicMetrics(next http.Handler, r *prometheus.Registry) http.Handler {
	metrics := promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/metrics" && (req.Method == http.MethodGet || req.Method == http.MethodHead) {
			metrics.ServeHTTP(w, req)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// clientAddress makes RemoteAddr that of the client behind trusted proxies. The
// port of such a client is not known and shown as 0.
func clientAddress(next http.Handler, trusted []netip.Prefix) http.Handler {
	if len(trusted) == 0 {
		return next
	}
	networks := make([]string, len(trusted))
	for i, p := range trusted {
		networks[i] = p.String()
	}
	return middleware.ClientIPFromXFF(networks...)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if ip := middleware.GetClientIP(r.Context()); ip != "" && err == nil && ip != host {
			r = r.Clone(r.Context())
			r.RemoteAddr = net.JoinHostPort(ip, "0")
		}
		next.ServeHTTP(w, r)
	}))
}

// endWaits cuts long polls off when a stop begins, so that clients ask another
// replica, or again. One that is asked for during the stop lasts until the drain
// is over: it may learn of the very job that the stop waits for.
func (a *App) endWaits(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimSuffix(r.URL.Path, "/")
		if (r.Method != http.MethodGet || !strings.HasSuffix(path, "/wait")) && (r.Method != http.MethodPost || path != "/grants") {
			next.ServeHTTP(w, r)
			return
		}
		end := a.stopping
		if a.isStopping() {
			end = a.leaving
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		go func() {
			select {
			case <-end:
				cancel(api.ErrStopping)
			case <-ctx.Done():
			}
		}()
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		next.ServeHTTP(ww, r.WithContext(ctx))
		if ww.Status() == 0 && r.Context().Err() == nil {
			draining(ww)
		}
	})
}

// draining answers as the API does, with the code that it documents.
func draining(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "5")
	refuse(w, http.StatusServiceUnavailable, "draining", "this gateway is stopping; the job goes on as its state says. Ask again.")
}

// refuse writes a problem document in front of the API.
func refuse(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{ // an error means that the client has left
		"type": "about:blank", "title": http.StatusText(status), "status": status, "code": code, "detail": detail,
	})
}
