package farcall

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

const patience = time.Minute

func listen(t *testing.T) *Listener {
	t.Helper()
	listener, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// pair creates both ends of a stream.
func pair() (net.Conn, net.Conn, func(), error) {
	listener, err := Listen("127.0.0.1:0")
	if err != nil {
		return nil, nil, nil, err
	}
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := listener.Accept()
		accepted <- conn
	}()
	client, err := Dial(listener.Addr().String())
	if err != nil {
		return nil, nil, nil, err
	}
	server := <-accepted
	if server == nil {
		return nil, nil, nil, errors.New("nothing was accepted")
	}
	return client, server, func() {
		_ = client.Close()
		_ = server.Close()
		_ = listener.Close()
	}, nil
}

// Package nettest checks the contract of net.Conn.
func TestConnIsANetConn(t *testing.T) {
	nettest.TestConn(t, pair)
}

func TestBothDirectionsAtOnceAreExact(t *testing.T) {
	client, server, stop, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	seed := time.Now().UnixNano()
	sent := make([]byte, 5_000_000)
	rand.New(rand.NewSource(seed)).Read(sent)
	var all sync.WaitGroup
	for _, end := range []net.Conn{client, server} {
		end := end
		all.Add(2)
		go func() {
			defer all.Done()
			if _, err := end.Write(sent); err != nil {
				t.Error(err)
			}
			if err := end.(*Conn).CloseWrite(); err != nil {
				t.Error(err)
			}
		}()
		go func() {
			defer all.Done()
			got, err := io.ReadAll(end)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("seed %d: %d bytes came of %d, %v", seed, len(got), len(sent), err)
			}
		}()
	}
	all.Wait()
}

func TestErrorsSayWhatAndWhere(t *testing.T) {
	if _, err := Dial("127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Error(err)
	}
	if _, err := Listen("nonsense"); err == nil {
		t.Error("it listens nowhere")
	}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := DialContext(done, "", "127.0.0.1:1"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	client, server, stop, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if server.LocalAddr().String() != client.RemoteAddr().String() || client.RemoteAddr().Network() != "farcall" {
		t.Error(server.LocalAddr(), client.RemoteAddr())
	}
	if err := client.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Error(err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := client.Close(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestClosingEndsAccepting(t *testing.T) {
	listener := listen(t)
	ended := make(chan error)
	go func() {
		_, err := listener.Accept()
		ended <- err
	}()
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestHTTP(t *testing.T) {
	listener := listen(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		// Read the complete body first: an HTTP/1 server stops reading it when it responds.
		body, _ := io.ReadAll(request.Body)
		_, _ = answer.Write(body)
	}))
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	defer server.Close()
	transport := &http.Transport{DialContext: DialContext}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: patience}
	var all sync.WaitGroup
	for length := 1; length < 1_000_000; length *= 7 {
		length := length
		all.Add(1)
		go func() {
			defer all.Done()
			sent := bytes.Repeat([]byte{byte(length)}, length)
			answer, err := client.Post("http://"+listener.Addr().String(), "", bytes.NewReader(sent))
			if err != nil {
				t.Error(err)
				return
			}
			defer answer.Body.Close()
			if got, err := io.ReadAll(answer.Body); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes came of %d, %v", len(got), length, err)
			}
		}()
	}
	all.Wait()
}

func TestGRPC(t *testing.T) {
	listener := listen(t)
	server, status := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, status)
	serving := make(chan error)
	go func() { serving <- server.Serve(listener) }()
	dial := func(ctx context.Context, address string) (net.Conn, error) { return DialContext(ctx, "", address) }
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := grpc_health_v1.NewHealthClient(conn)
	watch, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, wanted := range []grpc_health_v1.HealthCheckResponse_ServingStatus{
		grpc_health_v1.HealthCheckResponse_SERVING, grpc_health_v1.HealthCheckResponse_NOT_SERVING,
	} {
		status.SetServingStatus("", wanted)
		for {
			seen, err := watch.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if seen.Status == wanted {
				break
			}
		}
		answer, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err != nil || answer.Status != wanted {
			t.Fatal(answer, err)
		}
	}
	_ = conn.Close()
	server.GracefulStop()
	if err := <-serving; err != nil {
		t.Error(err)
	}
}
